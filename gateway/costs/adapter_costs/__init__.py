"""What each adapter costs besides its requests: loads, and the slots that it holds."""
