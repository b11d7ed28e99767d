"""What the site has and the repository has not: pages and pictures that are made of the code."""
