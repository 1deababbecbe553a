//! Rules of the code base, held by tests.
