"""OpenAI's vocabulary: requests as they come in, answers as they go out."""
