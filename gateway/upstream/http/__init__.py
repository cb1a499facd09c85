"""The data plane's HTTP/1.1 client: a connection, an answer that is read as it comes, and a pool."""
