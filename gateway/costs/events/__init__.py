"""Usage and cost as events for billing systems: CloudEvents, Lago, Stripe."""
