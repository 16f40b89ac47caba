"""Who bears unused GPU-time: standing policies, and the terms of each month."""
