-- Lists of orders by how they ended: without it a rare end was looked for through all orders, newest to oldest.
-- The accept writes nothing of it; the end of an order some 120 bytes of WAL more (460 of the row and its
-- other indexes without it, measured).
create index orders_ended on orders (status, id) where status <> 'RESERVED';
