"""Pure advice: a snapshot in, a change with its reason out."""
