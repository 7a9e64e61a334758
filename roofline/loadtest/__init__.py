"""Load tests of servers that speak the OpenAI API: what a user of the server would see, and what of it is the client's own doing."""
