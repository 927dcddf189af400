"""Model providers: requests built and replies read by pure functions, sent through one HTTP client."""
