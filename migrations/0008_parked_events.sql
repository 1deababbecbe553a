-- A parked event is asked for by its id: whoever misses it must know that it was not lost.
create index parked_events_by_event on parked_events (event_id);
