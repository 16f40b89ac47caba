"""Who pays for unused GPU time: standing policies, and the terms of each month."""
