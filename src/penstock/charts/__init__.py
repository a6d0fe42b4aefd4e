"""Charts: server-drawn SVG with HTML texts, for the report, the dashboard and the pictures of the docs."""
