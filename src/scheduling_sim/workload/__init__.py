"""What is asked of a server: requests, their content, arrival processes and public traces."""
