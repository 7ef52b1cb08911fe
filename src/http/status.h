// The reason phrases of HTTP statuses (RFC 9110, 15).
#ifndef HTTP_STATUS_H
#define HTTP_STATUS_H

// The phrase of a status that this project answers; "Refused" for any other.  Static text.
const char *http_status_phrase(unsigned status);

#endif
