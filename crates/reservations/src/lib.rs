//! Redis: the only package that names redis; owns the Lua scripts of the gate.
