"""What tests of all kinds share."""
