// A header of this project that has the name, and the include guard by the usual style, of one of
// Reprise's.
#ifndef BASE_IDS_H_
#define BASE_IDS_H_

inline constexpr int kOwnSlot = 0;

#endif  // BASE_IDS_H_
