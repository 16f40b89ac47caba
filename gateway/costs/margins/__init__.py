"""What is earned with each customer."""
