"""REST: HTTP in, use cases called, documents out."""
