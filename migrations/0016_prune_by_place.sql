-- The pruner goes round through idempotency by place. Found by age, rows that may not go yet (keys of
-- Kafka for 30 days) were read again each time, and pages that are used again are of all ages.
drop index idempotency_by_time;
comment on table idempotency is
    'One row per used key; its primary key decides between twins. Written by the accept. Pruned at the earliest 25 h after the order ended, by the round that next comes to its page.';
