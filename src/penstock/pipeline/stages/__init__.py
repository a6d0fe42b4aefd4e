"""The stages that fill a lake, compare it with PostgreSQL, and drop from PostgreSQL the days that the lake holds."""
