"""Selling prices: rate cards, who has which, and what a month's tokens cost a customer."""
