"""The commands. A file holds one command, one group of commands, or a large part of a group."""
