"""The screens, one file each: a request becomes a query, and its answer a page."""
