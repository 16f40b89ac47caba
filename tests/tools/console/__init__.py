"""What the console and the API's page have from npm: fetched, verified and recorded."""
