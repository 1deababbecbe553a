-- Dead letters stay as long as the shop needs them; those that nobody has handled since are few, and
-- stock looks at its own every ten seconds for money that they have left behind.
create index dead_letters_open on dead_letters (consumer) where state = 'OPEN';
