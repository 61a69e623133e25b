"""The web pages: complete without JavaScript, from the same use cases as the REST interface."""
