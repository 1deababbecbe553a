//! PostgreSQL: the only package that names sqlx.
