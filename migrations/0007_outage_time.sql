-- What an order has lost to an outage of ours by `until`: the time since the outage began, or since
-- the order did. One rule for both who need it: stock, which gives the time back when the outage
-- closes, and payment, which must count it before that. No argument may be null.
create function lost_to_outage(opened_at timestamptz, created_at timestamptz, until timestamptz)
    returns interval
    language sql
    immutable
    parallel safe
as
$$
select greatest(until - greatest(opened_at, created_at), interval '0')
$$;
comment on function lost_to_outage(timestamptz, timestamptz, timestamptz) is
    'The time that an order created at created_at has lost to an outage, by until.';
