"""Small real programs that stand in for the API and the reconciler under the supervisor."""
