"""Send requests with libcurl's multi interface: all of them in one thread, the caller's (`client="curl"`)."""
