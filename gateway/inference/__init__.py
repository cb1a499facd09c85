"""The data plane: authenticate, validate, measure, admit, route, open, stream, close, settle, a module a step."""
