"""What should be: REST, pages, command line, store and reconciler."""
