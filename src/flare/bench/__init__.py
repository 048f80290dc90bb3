"""`flare bench`: loads OpenAI-compatible servers with scenarios and says what their clients saw."""
