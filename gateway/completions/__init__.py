"""The one way of a request: authenticate, validate, measure, admit, route, open, stream, close, settle."""
