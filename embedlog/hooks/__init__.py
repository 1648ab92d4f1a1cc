"""The functions of the application that the library calls: `callbacks` and `interceptors`."""
