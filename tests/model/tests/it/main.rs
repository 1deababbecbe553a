//! The model is walked to the end, broken on purpose, and compared with the real code.

mod walks;
