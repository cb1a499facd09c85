"""The data plane's HTTP/1.1 client: a connection whose answer is read as it arrives, and a connection pool."""
