"""The statements that the client sends to PostgreSQL, by topic, and the code that reads the answers.

The sync and the async client share these modules; they do no I/O.
"""
