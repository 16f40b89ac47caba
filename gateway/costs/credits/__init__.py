"""What tenants have paid, or were given, in advance, and what their months draw of it."""
