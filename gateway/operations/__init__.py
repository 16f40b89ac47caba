"""What the operations of all rooms share."""
