"""The client of the SQL functions: all other code talks to PostgreSQL through it."""
