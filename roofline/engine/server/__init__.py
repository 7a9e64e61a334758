"""The engine behind the OpenAI API: an event loop that talks, and a thread beside it that computes."""
