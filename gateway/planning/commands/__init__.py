"""florin plan: asks a gateway for prices and usage, and shows which engines are enough, and their cost."""
