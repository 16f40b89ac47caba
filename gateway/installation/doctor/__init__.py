"""`florin doctor`: what is wrong with the installation."""
