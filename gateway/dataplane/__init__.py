"""One data-plane request over HTTP: parsing, response, access log."""
