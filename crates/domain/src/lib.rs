//! Pure rules of Holdfast: no clock, no runtime, no driver.

pub mod gate;
