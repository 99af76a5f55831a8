/* A STAND-IN for a vendor's library that is too old to have any of the functions that are needed.
 */
__attribute__((visibility("default"))) const char* standin_says(void) {
  return "a stand-in for a library that has nothing";
}
