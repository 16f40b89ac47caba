"""Images: what they install, and their bills of materials."""
