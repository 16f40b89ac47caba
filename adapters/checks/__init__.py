"""What is checked of an adapter before a GPU sees it."""
